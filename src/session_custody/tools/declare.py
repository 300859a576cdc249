"""Station 10, `@tool`: how an app team declares one of its functions as a tool (API 1, DESIGN 10).

    @tool(effect="write", idempotency="key", timeout="10s")
    async def add_note(ctx: ToolContext, alert_id: str, text: str) -> dict: ...

The manifest is the contract, not the decorator: the decorator is what the manifest is drafted from, and what
a worker compares with it before it serves the tool.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar

from pydantic import ValidationError

from session_custody.core.durations import seconds_of
from session_custody.core.errors import ContractInvalid
from session_custody.core.manifest import ToolSpec
from session_custody.tools.context import Done, NotFound, ToolContext
from session_custody.tools.input_schema import input_model, schema_of

P = ParamSpec("P")
R = TypeVar("R")
_Reconciler = TypeVar("_Reconciler", bound=Callable[..., Any])


class Tool(Generic[P, R]):
    """A declared tool. Calling it calls the function itself, for the app team's own tests; a run calls it
    through the gate only.
    """

    def __init__(self, function: Callable[Concatenate[Any, P], R], declared: Mapping[str, Any]) -> None:
        module, name = function.__module__, function.__name__
        self.endpoint = f"python:{module}:{name}"
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.input_model = input_model(function, self.endpoint)
        self.spec = _spec(self.endpoint, name, function, declared, schema_of(self.input_model, self.endpoint))
        self.reconciler: Callable[..., Any] | None = None
        self.__name__, self.__module__, self.__doc__ = name, module, function.__doc__
        self.__wrapped__ = function

    def __call__(self, ctx: ToolContext[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(ctx, *args, **kwargs)

    def reconcile(self, function: _Reconciler) -> _Reconciler:
        """Register who is asked after a crash: same arguments, answers `Done(result)` or `NotFound()`.

        Anything else (an exception, None) means unknown: the run is in doubt.
        """
        if self.reconciler is not None:
            raise ContractInvalid(self.endpoint, "has two reconcilers")
        asked = inspect.signature(function).parameters
        sent = inspect.signature(self.function).parameters
        if list(asked)[1:] != list(sent)[1:]:
            raise ContractInvalid(self.endpoint, "the reconciler takes other arguments than the tool")
        self.reconciler = function
        return function

    def __repr__(self) -> str:
        return f"<tool {self.endpoint}>"


def tool(
    *,
    effect: Literal["read", "write"],
    idempotency: Literal["key", "reconcile", "none"] | None = None,
    overlap: Literal["safe"] | None = None,
    on_not_found: Literal["resend", "in_doubt"] = "in_doubt",
    on_in_doubt: Literal["hold", "notify"] | None = None,
    timeout: str | None = None,
    attempts: int | None = None,
    saves: Mapping[str, str] | None = None,
    policy_args: Sequence[str] = (),
    visible: Sequence[str] = (),
    audience: str | None = None,
) -> Callable[[Callable[Concatenate[Any, P], R]], Tool[P, R]]:
    """Declare a function (async or plain) as a tool. Raises ContractInvalid at import, naming the field.

    `idempotency` is required of a write: `key` (the other side dedupes by ctx.idempotency_key), `reconcile`
    (it can be asked; give a reconciler), `none` (a person is asked; say `on_in_doubt`). `overlap="safe"`: it
    dedupes overlapping requests too. `timeout`: a duration like `10s`.
    """
    declared = {
        "effect": effect,
        "idempotency": idempotency,
        "overlap": overlap,
        "on_not_found": on_not_found,
        "on_in_doubt": on_in_doubt,
        "timeout_s": timeout,
        "attempts": attempts,
        "saves": dict(saves or {}),
        "policy_args": tuple(policy_args),
        "visible": tuple(visible),
        "audience": audience,
    }

    def declare(function: Callable[Concatenate[Any, P], R]) -> Tool[P, R]:
        return Tool(function, declared)

    return declare


def _spec(
    endpoint: str,
    name: str,
    function: Callable[..., Any],
    declared: Mapping[str, Any],
    schema: dict[str, Any],
) -> ToolSpec:
    values = dict(declared)
    try:
        if values["timeout_s"] is not None:
            values["timeout_s"] = seconds_of(values["timeout_s"])
        return ToolSpec.model_validate(
            {
                "name": name,
                "description": inspect.cleandoc(function.__doc__ or ""),
                "endpoint": endpoint,
                "input": schema,
                **values,
            }
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        sentence = first["msg"].removeprefix("Value error, ")
        raise ContractInvalid(endpoint, f"{place}: {sentence}" if place else sentence) from None
    except ValueError as error:
        raise ContractInvalid(endpoint, f"timeout: {error}") from None


__all__ = ["Done", "NotFound", "Tool", "ToolContext", "tool"]
