# Generated from client/promised.py by scripts/build_sync_client.py: do not edit, run `make sync`.
"""Promised methods: what sandboxes will have. Each raises NOT_AVAILABLE_YET, and takes what it will take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NoReturn, SupportsIndex

from atoll.protocol.arguments import Directory, Word
from atoll.protocol.durations import Duration
from atoll.protocol.sessions import DEFAULT_DIRECTORY
from atoll.values.promised import not_available_yet

Language = Literal["python", "javascript", "typescript", "bash"]
OnPart = Callable[..., object]


class Promised:
    """The methods that are not there yet: the documentation says what to do until then."""

    def connect_port(self, port: SupportsIndex) -> NoReturn:
        raise not_available_yet("connect_port")

    def run_code(
        self,
        code: str,
        *,
        context: object = None,
        language: Language = "python",
        timeout: Duration | None = None,
        on_stdout: OnPart | None = None,
        on_stderr: OnPart | None = None,
        on_result: OnPart | None = None,
        on_error: OnPart | None = None,
    ) -> NoReturn:
        raise not_available_yet("run_code")

    def run_code_stream(
        self, code: str, *, context: object = None, language: Language = "python", timeout: Duration | None = None
    ) -> NoReturn:
        raise not_available_yet("run_code_stream")

    def create_code_context(
        self,
        language: Language = "python",
        cwd: Directory = DEFAULT_DIRECTORY,
        env_vars: Mapping[str, str | None] | None = None,
        timeout: Duration | None = None,
    ) -> NoReturn:
        raise not_available_yet("create_code_context")

    def list_code_contexts(self) -> NoReturn:
        raise not_available_yet("list_code_contexts")

    def delete_code_context(self, id: str) -> NoReturn:
        raise not_available_yet("delete_code_context")

    def interrupt_code_context(self, id: str) -> NoReturn:
        raise not_available_yet("interrupt_code_context")

    def restart_code_context(self, id: str) -> NoReturn:
        raise not_available_yet("restart_code_context")

    def fork_code_context(self, id: str, n: SupportsIndex = 1) -> NoReturn:
        raise not_available_yet("fork_code_context")

    def git_checkout(
        self,
        repo_url: str,
        *,
        branch: str | None = None,
        target_dir: Directory | None = None,
        depth: SupportsIndex | None = None,
        submodules: bool = False,
        token: str | None = None,
        timeout: Duration = 600,
    ) -> NoReturn:
        raise not_available_yet("git_checkout")

    def git_status(self, dir: Directory) -> NoReturn:
        raise not_available_yet("git_status")

    def git_diff(self, dir: Directory) -> NoReturn:
        raise not_available_yet("git_diff")

    def git_commit(self, dir: Directory, message: str) -> NoReturn:
        raise not_available_yet("git_commit")

    def git_push(self, dir: Directory) -> NoReturn:
        raise not_available_yet("git_push")

    def snapshot(self, name: str | None = None) -> NoReturn:
        raise not_available_yet("snapshot")

    def list_snapshots(self) -> NoReturn:
        raise not_available_yet("list_snapshots")

    def delete_snapshot(self, snapshot: object) -> NoReturn:
        raise not_available_yet("delete_snapshot")

    def restore(self, snapshot: object) -> NoReturn:
        raise not_available_yet("restore")

    def diff(self, a: object, b: object = None) -> NoReturn:
        raise not_available_yet("diff")

    def fork(self, new_id: str, n: SupportsIndex = 1) -> NoReturn:
        raise not_available_yet("fork")

    def create_backup(self, directory: Directory = DEFAULT_DIRECTORY, **options: object) -> NoReturn:
        raise not_available_yet("create_backup")

    def restore_backup(self, backup: object, **options: object) -> NoReturn:
        raise not_available_yet("restore_backup")

    def mount_bucket(
        self,
        bucket: str,
        mount_path: Directory,
        *,
        endpoint: str | None = None,
        credentials: object = None,
        prefix: str | None = None,
        read_only: bool = False,
        region: str | None = None,
    ) -> NoReturn:
        raise not_available_yet("mount_bucket")

    def unmount_bucket(self, mount_path: Directory) -> NoReturn:
        raise not_available_yet("unmount_bucket")

    def flush_bucket(self, mount_path: Directory) -> NoReturn:
        raise not_available_yet("flush_bucket")

    def list_mounts(self) -> NoReturn:
        raise not_available_yet("list_mounts")

    def mount_volume(self, name: str, mount_path: Directory) -> NoReturn:
        raise not_available_yet("mount_volume")

    def schedule(self, cron: str, command: Word | list[Word], **options: object) -> NoReturn:
        raise not_available_yet("schedule")

    def list_schedules(self) -> NoReturn:
        raise not_available_yet("list_schedules")

    def delete_schedule(self, id: str) -> NoReturn:
        raise not_available_yet("delete_schedule")
