"""Stations 1 and 6: what Kafka's admin side knows of the input topic: cluster, generation,
earliest offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final, TypeVar

from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._topic import TopicDescription

from session_custody.core.errors import Unavailable
from session_custody.intake.kafkaerrors import code_of

ANSWER_S: Final = 10.0

T = TypeVar("T")


class AdminInputTopic:
    """`ports.InputTopic` over one AdminClient, made at the first question. Use from the event loop."""

    def __init__(self, connect: Callable[[], Mapping[str, str]], topic: str) -> None:
        self._connect = connect
        self._topic = topic
        self._client: AdminClient | None = None
        self._cluster: str | None = None

    async def cluster_id(self) -> str:
        if self._cluster is None:
            found = await self._answer(lambda admin: admin.describe_cluster(request_timeout=ANSWER_S))
            if found.cluster_id is None:
                raise Unavailable("kafka", "the cluster does not tell its id")
            self._cluster = str(found.cluster_id)
        return self._cluster

    async def topic_id(self) -> str:
        return str((await self._described()).topic_id)

    async def partitions(self) -> int:
        """How many the topic has now."""
        return len((await self._described()).partitions)

    async def earliest(self, partition: int) -> int:
        place = TopicPartition(self._topic, partition)
        oldest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        found = await self._answer(
            lambda admin: admin.list_offsets({place: oldest}, request_timeout=ANSWER_S)[place]
        )
        return int(found.offset)

    async def _described(self) -> TopicDescription:
        topics = TopicCollection([self._topic])
        found: TopicDescription = await self._answer(
            lambda admin: admin.describe_topics(topics, request_timeout=ANSWER_S)[self._topic]
        )
        return found

    async def _answer(self, ask: Callable[[AdminClient], Future[T]]) -> T:
        try:
            # Making the client and asking are quick, but librdkafka may log and lock: off the event loop.
            future = await asyncio.to_thread(lambda: ask(self._admin()))
            async with asyncio.timeout(ANSWER_S + 1):
                return await asyncio.wrap_future(future)
        except (KafkaException, TimeoutError) as error:
            raise Unavailable("kafka", code_of(error)) from None

    def _admin(self) -> AdminClient:
        if self._client is None:
            self._client = AdminClient(
                {**self._connect(), "client.id": "custody-admin"},
                logger=logging.getLogger("session_custody.librdkafka"),
            )
        return self._client
