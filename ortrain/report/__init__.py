"""A run as one HTML page, which needs no script and no file or address beside it."""

from ortrain.report.page import write_report

__all__ = ["write_report"]
