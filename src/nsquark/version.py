"""The two versions: nsquark's own, and that of the NSQ whose behaviour it keeps.

`pyproject.toml` reads VERSION from here, so this module imports nothing.
"""

VERSION = "0.1.0"
NSQ_VERSION = "1.3.0"
