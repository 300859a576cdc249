"""Station 12: committed rows become events on Kafka, exactly once (DESIGN 6, I9).

`LanePublisher` publishes one lane; `Publications` makes them and tells their health; `TopicAdmin` creates and
checks topics; `read_shown` is what an operator's adopt-floor accepts.
"""

from __future__ import annotations

from session_custody.publish.factory import Publications
from session_custody.publish.lane import LanePublisher
from session_custody.publish.records import Topics
from session_custody.publish.shown import Shown, read_shown
from session_custody.publish.topics import TopicAdmin, TopicFinding, Wanted
from session_custody.publish.tuning import PublishSettings

__all__ = [
    "LanePublisher",
    "Publications",
    "PublishSettings",
    "Shown",
    "TopicAdmin",
    "TopicFinding",
    "Topics",
    "Wanted",
    "read_shown",
]
