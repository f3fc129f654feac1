"""Tests with the real packages of other projects, for which the ordinary tests have stand-ins: `make integrations`."""
