"""Known values leave in no form (I11, DESIGN 12)."""

from __future__ import annotations

import base64
import json
import time
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session_custody.core.secret import Secret
from session_custody.redaction import KnownValues, environment_secrets, secrets_in
from session_custody.settings import Settings

CANARY = "c4n\"ary/+=\\é&'pass"
RAW = CANARY.encode()

FORMS: dict[str, str] = {
    "as it is": CANARY,
    "in JSON": json.dumps({"token": CANARY}),
    "in JSON, not only ASCII": json.dumps({"token": CANARY}, ensure_ascii=False),
    "in JSON in JSON": json.dumps(json.dumps({"token": CANARY})),
    "in JSON with every character escaped": "".join(f"\\u{ord(char):04X}" for char in CANARY),
    "in an address": f"https://h/?a=1&t={quote(CANARY, safe='')}",
    "in an address, small": quote(CANARY, safe="").replace("%2F", "%2f").replace("%2B", "%2b"),
    "in an address, all of it": "".join(f"%{byte:02x}" for byte in RAW),
    "in a form": quote_plus(CANARY),
    "in base64": base64.b64encode(RAW).decode(),
    "in base64 for addresses": base64.urlsafe_b64encode(RAW).decode().rstrip("="),
    "in base64 after one byte": base64.b64encode(b"x" + RAW + b"yz").decode(),
    "in base64 after two bytes": base64.b64encode(b"xy" + RAW).decode(),
    "in a Basic header": "Basic " + base64.b64encode(b"svc:" + RAW).decode(),
    "in hex": RAW.hex(),
    "in capital hex": RAW.hex().upper(),
    "as Python shows it": repr({"password": CANARY}),
    "in SQL": "password='" + CANARY.replace("'", "''") + "'",
}


@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_known_value_is_masked_in_every_form(form: str) -> None:
    masked = KnownValues([CANARY]).mask(f"before {FORMS[form]} after")
    assert "[redacted:" in masked
    for piece in (CANARY, RAW.hex(), base64.b64encode(RAW).decode()[2:-4]):
        assert piece not in masked
    assert masked.startswith("before ")
    assert masked.endswith(" after")


def test_a_text_without_a_known_value_is_the_same_text() -> None:
    text = "nothing to see"
    assert KnownValues([CANARY]).mask(text) is text
    assert KnownValues().mask(text) is text


def test_two_values_have_two_marks_and_the_mark_tells_nothing_to_another_process() -> None:
    known = KnownValues(["first-secret-1", "second-secret-2"])
    one, two = known.mask("first-secret-1"), known.mask("second-secret-2")
    assert one != two
    assert one == known.mask("first-secret-1")
    assert KnownValues(["first-secret-1"]).mask("first-secret-1") != one


def test_a_value_inside_of_another_one_does_not_leave_its_rest() -> None:
    known = KnownValues(["secret-part", "secret-part-and-more"])
    assert "more" not in known.mask("x secret-part-and-more x")


def test_short_values_and_plain_words_are_not_taken() -> None:
    known = KnownValues(["short", "postgres", "12345678", "a-b-c-d-"])
    assert len(known) == 1
    assert known.mask("the postgres server") == "the postgres server"


@given(
    secret=st.text(st.characters(exclude_categories=["Cs"]), min_size=12, max_size=40),
    around=st.tuples(st.text(max_size=20), st.text(max_size=20)),
)
def test_whatever_the_secret_is_it_is_not_in_what_leaves(secret: str, around: tuple[str, str]) -> None:
    known = KnownValues([secret])
    assert secret not in known.mask(around[0] + secret + around[1])
    escaped = json.dumps({"a": around[0] + secret + around[1]})
    assert json.dumps(secret)[1:-1] not in known.mask(escaped)


def test_the_environments_secrets_are_known_by_their_names() -> None:
    known = set(
        environment_secrets(
            {
                "OPENAI_API_KEY": "sk-1",
                "GITHUB_TOKEN": "gh-1",
                "PGPASSWORD": "pg-1",
                "AWS_SECRET_ACCESS_KEY": "aws-1",
                "PWD": "/home/me",
                "PATH": "/bin",
                "CUSTODY_AUDIT__SIGNING_KEY_FILE": "/keys/one.pem",
                "AWS_ACCESS_KEY_ID": "id-1",
                "DATABASE_URL": "postgresql://u:p%40ss@h/db",
                "ANYTHING": "amqp://u:hidden@h/",
                "MY_DSN": "host=h user=u password='with \\'quote'",
                "HOME": "/home/me",
            }
        )
    )
    assert {"sk-1", "gh-1", "pg-1", "aws-1", "p%40ss", "p@ss", "hidden", "with 'quote"} <= known
    assert not known & {"/home/me", "/bin", "/keys/one.pem", "id-1"}


def test_the_settings_secrets_are_known_and_an_address_only_by_its_password() -> None:
    settings = Settings.load(
        {
            "CUSTODY_MODEL__API_KEY": "CANARY-key",
            "CUSTODY_POSTGRES__DSN": "postgresql://u:CANARY-password@127.0.0.1/db",
            "CUSTODY_REDIS__URL": "redis://127.0.0.1:6379/0",
        }
    )
    assert set(secrets_in(settings)) == {"CANARY-key", "CANARY-password", "redis://127.0.0.1:6379/0"}


def test_a_secret_may_be_handed_over_as_one() -> None:
    known = KnownValues([Secret("CANARY-secret")])
    assert "CANARY" not in known.mask("x CANARY-secret x")


def test_many_secrets_and_a_long_text_are_no_matter() -> None:
    known = KnownValues(f"secret-number-{n}-of-many" for n in range(100))
    text = "a text that goes on and on; " * 2_000
    began = time.perf_counter()
    for _ in range(5):
        assert known.mask(text) is text
    assert time.perf_counter() - began < 2


def test_a_sink_masks_under_its_own_name() -> None:
    mask: Any = KnownValues([CANARY]).at("inference")
    assert "[redacted:" in mask(CANARY)


def test_a_text_that_was_clean_is_masked_once_its_value_is_known() -> None:
    known = KnownValues(["another-value-0001"])
    mask = known.at("inference")
    text = f"the tool said {CANARY} and nothing else"
    assert mask(text) == mask(text) == text
    known.add(CANARY)
    assert CANARY not in mask(text)
    assert mask(text) == known.mask(text)
