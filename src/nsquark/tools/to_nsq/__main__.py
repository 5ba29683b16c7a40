"""`python -m nsquark.tools.to_nsq`."""

import sys

from .program import main

sys.exit(main())
