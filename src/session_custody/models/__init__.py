"""Station 7, who proposes: the model behind the model port (DESIGN 9, API 3)."""

from session_custody.models.http import HttpModel, ModelUnavailable
from session_custody.models.scripted import ScriptedModel

__all__ = ["HttpModel", "ModelUnavailable", "ScriptedModel"]
