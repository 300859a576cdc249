"""Every bound of the core by name, unit last (DESIGN 5, 8). Each has a test at the bound.

A run's own limits are frozen into its row at admission (I3): see `Limits` in `pin.py`. What stands here
is the ceiling or the default that admission takes them from.
"""

from __future__ import annotations

from typing import Final

ID_CHARS_MAX: Final = 200
ID_PATTERN: Final = r"^[A-Za-z0-9._:@-]{1,200}$"

INPUT_BYTES_MAX: Final = 512 * 1024
ANSWER_BYTES_MAX: Final = 64 * 1024
ARGUMENTS_BYTES_MAX: Final = 64 * 1024
RESULT_BYTES_MAX: Final = 256 * 1024
WORKING_BYTES_MAX: Final = 64 * 1024
FINAL_TEXT_BYTES_MAX: Final = 256 * 1024
ERROR_TEXT_CHARS_MAX: Final = 2_000
REASON_CHARS_MAX: Final = 2_000
JSON_DEPTH_MAX: Final = 100
PROPOSAL_CALLS_MAX: Final = 32
CALL_ID_CHARS_MAX: Final = 200

LOOP_STEPS_MIN: Final = 1
LOOP_STEPS_MAX: Final = 1_000

BATCH_RECORDS_MAX: Final = 500
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024

EXPIRY_DEFAULT_S: Final = 24 * 3600
EXPIRY_MAX_S: Final = 366 * 24 * 3600
DEDUPE_HORIZON_S: Final = 7 * 24 * 3600
ORPHAN_HOLD_S: Final = 7 * 24 * 3600

TOOL_TIMEOUT_DEFAULT_S: Final = 10.0
TOOL_TIMEOUT_MAX_S: Final = 3_600.0
MODEL_TIMEOUT_DEFAULT_S: Final = 60.0
MODEL_ATTEMPTS_DEFAULT: Final = 5
TOOL_ATTEMPTS_DEFAULT: Final = 3
START_ALLOWANCE_DEFAULT_S: Final = 5.0
NOT_AFTER_MARGIN_DEFAULT_S: Final = 1.0
NOT_AFTER_RENEWALS_MAX: Final = 3
ASK_AGAIN_FIRST_S: Final = 1.0

PARK_BACKOFF_FIRST_S: Final = 1.0
PARK_BACKOFF_MAX_S: Final = 300.0

SUSPECT_AT: Final = 3
UNCLEAN_ENDS_AT: Final = 2
SUSPECTS_AT_ONCE: Final = 4
SUSPECT_MINUTE_S: Final = 60.0
