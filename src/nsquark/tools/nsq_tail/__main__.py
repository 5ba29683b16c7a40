"""`python -m nsquark.tools.nsq_tail`."""

import sys

from .program import main

sys.exit(main())
