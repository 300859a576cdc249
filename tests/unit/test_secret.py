"""A Secret shows itself to nobody but `reveal` (I11)."""

from __future__ import annotations

import copy
import dataclasses
import gc
import json
import logging
import pickle
import traceback
from collections.abc import Callable

import orjson
import pytest
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticSerializationError

from session_custody.core.secret import PLACEHOLDER, Secret

VALUE = "s3cr3t-välue-7f"


class Holder(BaseModel):
    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    token: Secret
    count: int = 0


@dataclasses.dataclass(frozen=True)
class Plain:
    token: Secret


def test_reveal_hands_out_the_value_for_a_named_purpose() -> None:
    assert Secret(VALUE).reveal("test") == VALUE
    with pytest.raises(ValueError, match="what the secret is revealed for"):
        Secret(VALUE).reveal("")


@pytest.mark.parametrize(
    "use",
    [
        str,
        bytes,
        lambda secret: f"{secret}",
        lambda secret: f"{secret:>20}",
        lambda secret: "%s" % secret,  # noqa: UP031 - the way a log line is made
        json.dumps,
        lambda secret: json.dumps({"a": secret}, default=str),
        lambda secret: orjson.dumps({"a": secret}),
        pickle.dumps,
        copy.copy,
        copy.deepcopy,
        lambda secret: dataclasses.asdict(Plain(secret)),
        vars,
        hash,
        len,
        iter,
        list,
        lambda secret: secret + "x",
        lambda secret: setattr(secret, "extra", 1),
        lambda secret: delattr(secret, "_Secret__open"),
        lambda secret: type("Loud", (Secret,), {}),
        lambda secret: Holder(token=secret).model_dump_json(),
        lambda secret: Holder(token=secret).model_copy(deep=True),
    ],
)
def test_every_other_way_out_is_refused_without_the_value(use: Callable[[Secret], object]) -> None:
    with pytest.raises((TypeError, PydanticSerializationError)) as caught:
        use(Secret(VALUE))
    assert VALUE not in "".join(traceback.format_exception(caught.value))


def test_where_a_value_is_shown_a_placeholder_stands() -> None:
    secret = Secret(VALUE)
    assert repr(secret) == PLACEHOLDER
    assert repr([secret]) == f"[{PLACEHOLDER}]"
    assert f"{secret!r}" == PLACEHOLDER
    assert PLACEHOLDER in repr(Plain(secret))
    holder = Holder(token=secret)
    assert PLACEHOLDER in repr(holder)
    assert VALUE not in str(holder)
    assert holder.model_dump() == {"token": secret, "count": 0}
    assert not any(
        VALUE in str(getattr(secret, name)) for name in dir(secret) if name not in {"__str__", "__doc__"}
    )


def test_no_attribute_and_no_direct_referent_is_the_value() -> None:
    assert VALUE not in gc.get_referents(Secret(VALUE))
    assert not hasattr(Secret(VALUE), "__dict__")


def test_equality_compares_values_and_only_with_secrets() -> None:
    assert Secret(VALUE) == Secret(VALUE)
    assert Secret(VALUE) != Secret(VALUE + "x")
    assert Secret(VALUE) != VALUE
    # what an environment variable in another encoding becomes
    assert Secret("\udcff") == Secret("\udcff")


@pytest.mark.parametrize("bad", ["", 12345678, None, b"bytes-8271", ["list-8271"]])
def test_a_pydantic_error_shows_the_placeholder_in_place_of_the_input(bad: object) -> None:
    class Loud(BaseModel):
        token: Secret

    with pytest.raises(ValidationError) as caught:
        Loud.model_validate({"token": bad})
    assert "a secret is text and not empty" in str(caught.value)
    assert [error["input"] for error in caught.value.errors()] == [PLACEHOLDER]
    assert not bad or str(bad) not in str(caught.value)


def test_an_error_of_a_sibling_field_does_not_show_it() -> None:
    with pytest.raises(ValidationError) as caught:
        Holder.model_validate({"token": VALUE, "count": "many"})
    assert VALUE not in str(caught.value)


def test_pydantic_takes_text_and_secrets_from_python_and_from_json() -> None:
    assert Holder.model_validate({"token": VALUE}).token == Secret(VALUE)
    assert Holder.model_validate_json(json.dumps({"token": VALUE})).token == Secret(VALUE)
    assert Holder(token=Secret(VALUE)).token.reveal("test") == VALUE
    assert Holder.model_json_schema()["properties"]["token"]["writeOnly"] is True


@pytest.mark.parametrize("bad", ["", 5, None])
def test_what_is_no_credential_is_no_secret(bad: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        Secret(bad)  # type: ignore[arg-type]


def test_a_log_line_with_a_secret_fails_loudly(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.Logger("test")  # noqa: LOG001 - a registered one would hand the line to pytest too
    logger.addHandler(logging.StreamHandler())
    logger.warning("the token is %s", Secret(VALUE))
    shown = capsys.readouterr().err
    assert "reveal(purpose)" in shown
    assert VALUE not in shown
