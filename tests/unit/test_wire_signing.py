"""I9: keys of the audit trail, and that nothing shows the private one."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from session_custody import wire
from session_custody.core.errors import SettingsError


def test_a_key_is_written_for_its_owner_alone_and_read_back(tmp_path: Path) -> None:
    made = wire.generate_signing_key(tmp_path / "key.pem")
    assert stat.S_IMODE((tmp_path / "key.pem").stat().st_mode) == 0o600
    read = wire.Ed25519Signer.from_pem_file(tmp_path / "key.pem")
    assert read.key_id == made.key_id
    assert read.sign(b"h" * 32) == made.sign(b"h" * 32)


def test_a_key_is_never_replaced(tmp_path: Path) -> None:
    wire.generate_signing_key(tmp_path / "key.pem")
    with pytest.raises(FileExistsError):
        wire.generate_signing_key(tmp_path / "key.pem")


def test_the_key_id_follows_from_the_public_key(tmp_path: Path) -> None:
    signer = wire.generate_signing_key(tmp_path / "key.pem")
    raw = signer.public_key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    assert signer.key_id == hashlib.sha256(raw).hexdigest()[:16]


def test_exported_keys_prove_what_was_signed(tmp_path: Path) -> None:
    old, new = (wire.generate_signing_key(tmp_path / name) for name in ("old.pem", "new.pem"))
    for signer in (old, new, old):
        signer.export_public_key(tmp_path / "public")
    keys = wire.read_public_keys(tmp_path / "public")
    assert set(keys) == {old.key_id, new.key_id}
    keys[old.key_id].verify(old.sign(b"h"), b"h")
    with pytest.raises(InvalidSignature):
        keys[new.key_id].verify(old.sign(b"h"), b"h")


def test_a_wrong_file_names_the_setting_and_no_content(tmp_path: Path) -> None:
    (tmp_path / "junk.pem").write_text("made-up content")
    other = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "ec.pem").write_bytes(other)
    for name in ("missing.pem", "junk.pem", "ec.pem"):
        with pytest.raises(SettingsError) as caught:
            wire.Ed25519Signer.from_pem_file(tmp_path / name)
        assert caught.value.setting == "CUSTODY_AUDIT__SIGNING_KEY_FILE"
        assert "made-up" not in str(caught.value)
