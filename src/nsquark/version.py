"""The two versions: nsquark's own, and that of the NSQ whose behaviour it keeps.

`pyproject.toml` reads VERSION from here, so this module imports nothing.
"""

VERSION = "0.1.0"
NSQ_VERSION = "1.3.0"
BUILT_WITH = (
    f"nsquark-{VERSION}"  # where NSQ names its Go: one word, since clients' test suites parse it as one
)
