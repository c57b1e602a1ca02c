"""The bus itself: what messages are, where they are stored, and who is trusted. It runs on POSIX systems alone."""

from bus.platforms import check_platform

check_platform()
