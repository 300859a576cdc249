"""`python -m session_custody.settings > docs/settings.md`: the reference, as a test compares it."""

from __future__ import annotations

import sys

from session_custody.settings import Settings

sys.stdout.write(Settings.reference())
