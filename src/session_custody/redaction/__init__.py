"""Redaction: values that are known to be secret leave in no form (I11, DESIGN 12). A sibling of the stations.

The layer of known values alone; patterns and the verification of final bytes come with custody of tokens.
"""

from session_custody.redaction.known_values import KnownValues
from session_custody.redaction.sources import environment_secrets, secrets_in

__all__ = ["KnownValues", "environment_secrets", "secrets_in"]
