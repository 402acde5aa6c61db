"""For all tests: examples drawn at random have no time limit each, since a busy machine is no defect."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("memkit", parent=settings.default, deadline=None)
settings.load_profile("memkit")
