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


class AsyncPromised:
    """The methods that are not there yet: the documentation says what to do until then."""

    async def connect_port(self, port: SupportsIndex) -> NoReturn:
        raise not_available_yet("connect_port")

    async def run_code(
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

    async def create_code_context(
        self,
        language: Language = "python",
        cwd: Directory = DEFAULT_DIRECTORY,
        env_vars: Mapping[str, str | None] | None = None,
        timeout: Duration | None = None,
    ) -> NoReturn:
        raise not_available_yet("create_code_context")

    async def list_code_contexts(self) -> NoReturn:
        raise not_available_yet("list_code_contexts")

    async def delete_code_context(self, id: str) -> NoReturn:
        raise not_available_yet("delete_code_context")

    async def interrupt_code_context(self, id: str) -> NoReturn:
        raise not_available_yet("interrupt_code_context")

    async def restart_code_context(self, id: str) -> NoReturn:
        raise not_available_yet("restart_code_context")

    async def fork_code_context(self, id: str, n: SupportsIndex = 1) -> NoReturn:
        raise not_available_yet("fork_code_context")

    async def git_checkout(
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

    async def git_status(self, dir: Directory) -> NoReturn:
        raise not_available_yet("git_status")

    async def git_diff(self, dir: Directory) -> NoReturn:
        raise not_available_yet("git_diff")

    async def git_commit(self, dir: Directory, message: str) -> NoReturn:
        raise not_available_yet("git_commit")

    async def git_push(self, dir: Directory) -> NoReturn:
        raise not_available_yet("git_push")

    async def snapshot(self, name: str | None = None) -> NoReturn:
        raise not_available_yet("snapshot")

    async def list_snapshots(self) -> NoReturn:
        raise not_available_yet("list_snapshots")

    async def delete_snapshot(self, snapshot: object) -> NoReturn:
        raise not_available_yet("delete_snapshot")

    async def restore(self, snapshot: object) -> NoReturn:
        raise not_available_yet("restore")

    async def diff(self, a: object, b: object = None) -> NoReturn:
        raise not_available_yet("diff")

    async def fork(self, new_id: str, n: SupportsIndex = 1) -> NoReturn:
        raise not_available_yet("fork")

    async def create_backup(self, directory: Directory = DEFAULT_DIRECTORY, **options: object) -> NoReturn:
        raise not_available_yet("create_backup")

    async def restore_backup(self, backup: object, **options: object) -> NoReturn:
        raise not_available_yet("restore_backup")

    async def mount_bucket(
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

    async def unmount_bucket(self, mount_path: Directory) -> NoReturn:
        raise not_available_yet("unmount_bucket")

    async def flush_bucket(self, mount_path: Directory) -> NoReturn:
        raise not_available_yet("flush_bucket")

    async def list_mounts(self) -> NoReturn:
        raise not_available_yet("list_mounts")

    async def mount_volume(self, name: str, mount_path: Directory) -> NoReturn:
        raise not_available_yet("mount_volume")

    async def schedule(self, cron: str, command: Word | list[Word], **options: object) -> NoReturn:
        raise not_available_yet("schedule")

    async def list_schedules(self) -> NoReturn:
        raise not_available_yet("list_schedules")

    async def delete_schedule(self, id: str) -> NoReturn:
        raise not_available_yet("delete_schedule")
