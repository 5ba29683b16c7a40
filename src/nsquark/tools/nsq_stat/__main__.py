"""`python -m nsquark.tools.nsq_stat`."""

import sys

from .program import main

sys.exit(main())
