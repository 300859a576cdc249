"""A value that does not show itself (I11, DESIGN 12).

`Secret` has no way out but `reveal(purpose)`: printing it shows a placeholder, and whatever would copy it
somewhere unseen (text, formatting, JSON, pickle, copy, a hash) is refused with a `TypeError`. Refused and not
replaced by stars: a placeholder that ends up in a DSN or a header is a wrong credential that nobody notices.

It is a fence against accidents, not against code in the same process: who can run Python here can read its
memory.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any, Final, NoReturn, final

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

PLACEHOLDER: Final = "<Secret>"


@final
class Secret:
    """One credential as text. `Secret("…")`; empty text is no credential and a `ValueError`.

    As a field of a pydantic model it takes text or another Secret; an error about it shows the placeholder in
    place of the input. An error of the *whole* model would still show the model's input: such a model sets
    `hide_input_in_errors`.
    """

    # A closure in a slot: not in vars(), and reading the slot by its mangled name yields a function, not the
    # value.
    __slots__ = ("__open",)
    __open: Callable[[], str]

    def __init__(self, value: str) -> None:
        if not isinstance(value, str):
            raise TypeError("a secret is text")
        if not value:
            raise ValueError("a secret is not empty")
        object.__setattr__(self, "_Secret__open", lambda: value)

    def reveal(self, purpose: str) -> str:
        """The value, for one named purpose (`"kafka connection"`). The caller hands it on at once and keeps
        no copy.
        """
        if not purpose:
            raise ValueError("say what the secret is revealed for")
        return self.__open()

    def __repr__(self) -> str:
        return PLACEHOLDER

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        # surrogatepass: an undecodable environment variable must compare, not raise with its content
        mine, theirs = (s.__open().encode("utf-8", "surrogatepass") for s in (self, other))
        return hmac.compare_digest(mine, theirs)

    # A hash is a fingerprint of the value that anybody may keep; nothing here needs a set of secrets.
    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> NoReturn:  # noqa: PLE0307 - refused on purpose
        _refuse("made into text")

    def __format__(self, spec: str) -> NoReturn:
        _refuse("formatted")

    def __bytes__(self) -> NoReturn:  # noqa: PLE0308 - refused on purpose
        _refuse("made into bytes")

    def __copy__(self) -> NoReturn:
        _refuse("copied")

    def __deepcopy__(self, memo: object) -> NoReturn:
        _refuse("copied")

    def __getstate__(self) -> NoReturn:
        _refuse("pickled")

    def __reduce__(self) -> NoReturn:
        _refuse("pickled")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        _refuse("pickled")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        _refuse("changed")

    def __delattr__(self, name: str) -> NoReturn:
        _refuse("changed")

    def __init_subclass__(cls) -> NoReturn:
        _refuse("subclassed")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _parse,
            # model_dump() hands the Secret on as it is; only writing it as JSON is refused.
            serialization=core_schema.plain_serializer_function_ser_schema(_refuse_json, when_used="json"),
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": "string", "writeOnly": True, "minLength": 1}


def _parse(value: object) -> Secret:
    if isinstance(value, Secret):
        return value
    if isinstance(value, str) and value:
        return Secret(value)
    # An error raised as a ValidationError of its own keeps its own input: the placeholder, never the value.
    problem = PydanticCustomError("secret", "a secret is text and not empty")
    raise ValidationError.from_exception_data("Secret", [{"type": problem, "loc": (), "input": PLACEHOLDER}])


def _refuse_json(secret: Secret) -> NoReturn:
    _refuse("written as JSON")


def _refuse(what: str) -> NoReturn:
    raise TypeError(f"a Secret is not {what}; reveal(purpose) hands its value to the one place that needs it")
