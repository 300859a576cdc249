from kafka import OffsetAndMetadata as OffsetAndMetadata
from kafka import TopicPartition as TopicPartition
