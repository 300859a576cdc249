"""The signature of an outcome: Ed25519 over the event's hash, and its keys (DESIGN 7, I9).

key_id = first 16 hex digits of the SHA-256 of the raw 32-byte public key. Public keys are exported for ever,
one PEM file each, named `<key_id>.pem`: a retired key still proves what it signed.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from session_custody.core.errors import SettingsError

SETTING: Final = "CUSTODY_AUDIT__SIGNING_KEY_FILE"
KEY_ID_CHARS: Final = 16


class Ed25519Signer:
    """Signs event hashes; the port `Signer`. Has no way to show its key."""

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        self._private_key = private_key
        self._public_key = private_key.public_key()
        self._key_id = key_id_of(self._public_key)

    @classmethod
    def from_pem_file(cls, path: Path | str, setting: str = SETTING) -> Ed25519Signer:
        """Read an unencrypted PKCS#8 PEM file. Raises SettingsError, naming the setting and no content."""
        file = Path(path)
        try:
            key = load_pem_private_key(file.read_bytes(), password=None)
        except OSError as error:
            problem = f"the file cannot be read ({type(error).__name__})"
        except (ValueError, TypeError):
            problem = "the file holds no unencrypted private key in PEM"
        else:
            if isinstance(key, Ed25519PrivateKey):
                return cls(key)
            problem = "the key is not Ed25519"
        raise SettingsError(setting, problem)

    @property
    def key_id(self) -> str:
        return self._key_id

    @property
    def public_key(self) -> Ed25519PublicKey:
        return self._public_key

    def sign(self, event_hash: bytes) -> bytes:
        """64 bytes; the same for the same hash and key, so a replay is byte-identical."""
        return self._private_key.sign(event_hash)

    def export_public_key(self, folder: Path | str) -> Path:
        """Write `<key_id>.pem` into a folder (made if missing); a file that is there already stays."""
        target = Path(folder) / f"{self._key_id}.pem"
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.write_bytes(self._public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        return target


def key_id_of(public_key: Ed25519PublicKey) -> str:
    raw = public_key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:KEY_ID_CHARS]


def generate_signing_key(path: Path | str) -> Ed25519Signer:
    """Make a key and write it as PKCS#8 PEM, readable by its owner alone. Refuses to replace a file."""
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(pem)
    return Ed25519Signer(key)


def read_public_keys(folder: Path | str) -> dict[str, Ed25519PublicKey]:
    """Every `*.pem` of a folder by its key_id (computed, not taken from the name).

    Raises TypeError for another kind of key.
    """
    keys: dict[str, Ed25519PublicKey] = {}
    for file in sorted(Path(folder).glob("*.pem")):
        key = load_pem_public_key(file.read_bytes())
        if not isinstance(key, Ed25519PublicKey):
            raise TypeError(f"{file.name} holds no Ed25519 key")
        keys[key_id_of(key)] = key
    return keys
