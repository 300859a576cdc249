"""Station 12: making a publisher for each incarnation, and what health hears of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from weakref import WeakSet

from session_custody.ports import LaneFence
from session_custody.publish.lane import LanePublisher
from session_custody.publish.options import KafkaConfig
from session_custody.publish.outbox import OutboxStore
from session_custody.publish.records import Topics
from session_custody.publish.tuning import PublishSettings
from session_custody.wire import lane_text


class Publications:
    """Called with a fence, gives its `LanePublisher`.

    `connect` gives the connection's options; it is called for each publisher and its answer, which holds
    secrets, is kept by that publisher alone.
    """

    def __init__(
        self,
        store: OutboxStore,
        connect: Callable[[], KafkaConfig],
        topics: Topics,
        deployment: str,
        settings: PublishSettings,
    ) -> None:
        self._store = store
        self._connect = connect
        self._topics = topics
        self._deployment = deployment
        self._settings = settings
        self._made: WeakSet[LanePublisher] = WeakSet()

    def __call__(self, fence: LaneFence) -> LanePublisher:
        publisher = LanePublisher(
            fence, self._store, self._connect(), self._topics, self._deployment, self._settings
        )
        self._made.add(publisher)
        return publisher

    @property
    def mode(self) -> str:
        """`transactional` or `at_least_once`; health shows it (DESIGN 6, step 5)."""
        return self._settings.mode

    def findings(self) -> Mapping[str, str]:
        """Lanes whose publication is stopped or keeps failing: lane -> why."""
        return {
            lane_text(publisher.key.topic, publisher.key.partition): why
            for publisher in self._made
            if publisher.running and (why := publisher.closed_because or publisher.trouble)
        }
