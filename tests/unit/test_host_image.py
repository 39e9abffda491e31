"""Which of a host's files get into the host image, tried on hosts made up for the purpose."""

import hashlib
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atoll.images.catalog import ImageCatalog
from atoll.images.debian_etc import public_groups, public_users
from atoll.images.host import HostImage, read_host_state
from atoll.protocol.errors import AtollError, ErrorCode

PASSWD = """\
root:x:0:0:Jane Doe,,555:/srv/jane:/bin/zsh
www-data:x:33:33:www:/var/www:/usr/sbin/nologin
jane:x:1000:1000:Jane:/home/jane:/bin/zsh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
broken
"""


@pytest.fixture
def host(tmp_path: Path) -> Path:
    root = tmp_path / "host"
    for name in ("usr/bin", "usr/lib", "usr/sbin", "etc/ssl/certs", "etc/ssl/private", "var/lib/dpkg", "root"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "usr/lib/os-release").write_text('NAME="Test"\nPRETTY_NAME="Testux 1 (beta)"\n')
    (root / "etc/passwd").write_text(PASSWD)
    (root / "etc/group").write_text("root:x:0:\nadm:x:4:jane,www-data\nshadow:x:42:\njane:x:1000:\n")
    (root / "etc/shadow").write_text("root:$6$secret:1::::::\n")
    (root / "etc/kept.conf").write_text("as shipped\n")
    (root / "etc/edited.conf").write_text("password=hunter2\n")
    (root / "etc/closed.conf").write_text("as shipped\n")
    (root / "etc/closed.conf").chmod(0o600)
    (root / "etc/own.conf").write_text("token=abc\n")
    (root / "etc/ssl/certs/ca.pem").write_text("certificate")
    (root / "etc/ssl/certs/own.pem").write_text("-----BEGIN PRIVATE KEY----- hunter2")
    (root / "etc/ssl/certs/own.key").write_text("hunter2")
    (root / "etc/pam.d").mkdir()
    (root / "etc/pam.d/common-auth").write_text("auth required pam_ldap.so bindpw=hunter2\n")
    (root / "etc/profile").write_text("export https_proxy=http://me:hunter2@proxy\n")
    (root / "etc/ssl/private/key.pem").write_text("key")
    (root / "root/.bash_history").write_text("secret")
    shipped = hashlib.md5(b"as shipped\n").hexdigest()
    names = ("kept.conf", "edited.conf", "closed.conf", "missing.conf")
    conffiles = "".join(f" /etc/{name} {shipped}\n" for name in names)
    (root / "var/lib/dpkg/status").write_text(f"Package: x\nConffiles:\n{conffiles}Description: y\n")
    (root / "var/lib/dpkg/lock").write_text("")
    return root


def build(host: Path, store: Path) -> Path:
    return Path(HostImage(store, host).resolve().overlays[0].layers[0])


def test_accounts_in_another_encoding_do_no_harm(host: Path, tmp_path: Path) -> None:
    with (host / "etc/passwd").open("ab") as file:
        file.write("jos\xe9:x:40:40:Jos\xe9:/:/bin/sh\n".encode("latin-1"))
    etc = build(host, tmp_path / "store") / "etc"
    assert b"jos\xe9:x:40:40:jos\xe9:/:/bin/sh\n" in (etc / "passwd").read_bytes()
    assert b"jos\xe9:*:" in (etc / "shadow").read_bytes()


def test_an_image_that_was_not_finished_is_removed(host: Path, tmp_path: Path) -> None:
    images = ImageCatalog(tmp_path / "store", HostImage(tmp_path / "store", host))
    images.add("kept", host)
    (tmp_path / "store/.making-abc/root").mkdir(parents=True)
    images.forget(set())
    assert not (tmp_path / "store/.making-abc").exists()
    assert images.names() == ["host", "kept"]


def test_only_what_is_public_comes_along(host: Path, tmp_path: Path) -> None:
    root = build(host, tmp_path / "store")
    etc = {str(path.relative_to(root / "etc")) for path in (root / "etc").rglob("*") if not path.is_dir()}
    assert {"kept.conf", "ssl/certs/ca.pem", "passwd", "shadow"} <= etc
    assert not {"edited.conf", "closed.conf", "own.conf", "ssl/private/key.pem"} & etc
    everything = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    for secret in (b"hunter2", b"$6$secret", b"jane", b"Jane", b"token=abc", b"certificatekey"):
        assert secret not in everything
    assert list((root / "root").iterdir()) == list((root / "home").iterdir()) == []
    assert not (root / "var/lib/dpkg/lock").exists()


def test_modes_do_not_depend_on_the_builders_umask(host: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        root = build(host, tmp_path / "store")
    finally:
        os.umask(before)
    for name in ("etc", "etc/passwd", "var/lib/dpkg", "var/log/apt", "workspace", "etc/ssl/certs"):
        assert (root / name).stat().st_mode & 0o044 == 0o044, name


def test_accounts_of_people_stay_out_and_root_is_the_sandboxs() -> None:
    assert public_users(PASSWD) == [
        "root:x:0:0:root:/root:/bin/bash",
        "www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin",
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin",
    ]
    assert public_groups("adm:x:4:jane,www-data\njane:x:1000:\n", {"www-data"}) == ["adm:x:4:www-data"]


def test_the_same_state_is_built_once_and_a_changed_host_anew(host: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = build(host, store)
    assert build(host, store) == first
    status = host / "var/lib/dpkg/status"
    os.utime(status, ns=(1, 1))
    assert build(host, store) != first
    assert first.is_dir(), "a sandbox made on the old state still needs it"


def test_threads_that_ask_at_once_get_one_root_and_leave_the_umask_alone(host: Path, tmp_path: Path) -> None:
    image, before = HostImage(tmp_path / "store", host), os.umask(0o077)
    try:
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda _: image.resolve(), range(8)))
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)
    assert found == [image.known()] * 8
    assert len(list((tmp_path / "store/host").iterdir())) == 1


def test_the_state_names_the_system(host: Path) -> None:
    assert read_host_state(host).system == "Testux 1 (beta)"


def test_a_host_whose_bin_is_not_in_usr_is_refused(host: Path, tmp_path: Path) -> None:
    (host / "bin").unlink()
    (host / "bin").mkdir()
    with pytest.raises(AtollError) as caught:
        build(host, tmp_path / "store")
    assert caught.value.code == ErrorCode.HOST_IMAGE_NOT_POSSIBLE
    assert "usrmerge" in caught.value.remedy


def test_a_build_that_fails_leaves_nothing_half_made(host: Path, tmp_path: Path) -> None:
    (host / "etc/passwd").unlink()
    with pytest.raises(AtollError) as caught:
        build(host, tmp_path / "store")
    assert caught.value.code == ErrorCode.HOST_IMAGE_NOT_POSSIBLE
    assert list((tmp_path / "store/host").iterdir()) == []


def test_roots_that_no_sandbox_uses_are_forgotten(host: Path, tmp_path: Path) -> None:
    image, roots = HostImage(tmp_path / "store", host), []
    for moment in (1, 2, 3):
        os.utime(host / "var/lib/dpkg/status", ns=(moment, moment))
        roots.append(image.resolve())
    abandoned = tmp_path / "store/host/making-4194305-x"  # a pid beyond the largest there can be
    abandoned.mkdir()
    image.forget({roots[0].state})
    assert [Path(root.overlays[0].layers[0]).is_dir() for root in roots] == [True, False, True]
    assert not abandoned.exists()


def test_a_store_without_inodes_is_told_as_one(host: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (host / "etc/alternatives").mkdir(exist_ok=True)
    for number in range(100):
        (host / f"etc/alternatives/{number}").symlink_to("/usr/bin/true")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=80", "tmpfs", store], check=True)
    try:
        with pytest.raises(AtollError) as caught:
            build(host, store)
    finally:
        subprocess.run(["umount", store], check=True)
    assert caught.value.code is ErrorCode.NO_SPACE
    assert "df -i" in caught.value.remedy and str(store) in caught.value.message
