"""Requests that submit, find, change, archive and delete jobs."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from accordion_client.sdk.errors import AmbiguousJob, NotFound
from accordion_client.sdk.query_params import format_filters, format_params
from accordion_client.sdk.request_sender import RequestSender
from accordion_client.sdk.shared_methods import shared_iterator, shared_method
from accordion_service.domain.jobs.status_table import UNFINISHED
from accordion_service.schemas.jobs import CodeView, JobPage, JobView

if TYPE_CHECKING:
    from accordion_service.schemas.batches import BatchView
    from accordion_service.schemas.queries import JobKeywords
    from accordion_service.schemas.specs import DryRun

UPLOAD_TIMEOUT_S = 120.0
"""Timeout of an upload, which is unpacked once before the response."""
BATCH_TIMEOUT_S = 60.0
"""Timeout of an action on several jobs: the service ends one after 20 s, or after the wait of up to
30 s for its database.
"""
PAGE_JOBS = 200
"""Maximum number of jobs per page."""
MAX_NAME = 63
"""Maximum length of a job name, in characters."""
_ARCHIVED: Mapping[bool | None, Mapping[str, str]] = {
    False: {},
    True: {"archived": "true"},
    None: {"archived": "any"},
}
"""Parameter of a list; none for the default, so that services without an archive accept it."""
_ID_PREFIX = re.compile(r"[0-9a-f-]{1,36}")


class JobRequests(RequestSender):
    """Part of `Client` and `AsyncClient`."""

    @shared_method
    async def submit(
        self, spec: Mapping[str, Any], *, idempotency_key: str | None = None
    ) -> JobView:
        """Submit a job; with a key, a repeated request returns the same job."""
        return await self._create(JobView, "/jobs", idempotency_key, json=dict(spec))

    @shared_method
    async def clone(
        self,
        job_id: str,
        changes: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> JobView:
        """Submit a new job with the spec of another one and a JSON merge patch."""
        body = {"spec": dict(changes or {})}
        return await self._create(JobView, f"/jobs/{job_id}/clone", idempotency_key, json=body)

    @shared_method
    async def upload(self, archive: bytes) -> CodeView:
        """Upload your own modules as a zip file; name the returned `sha256` in the field `code` of
        a spec.
        """
        headers = {"Content-Type": "application/zip"}
        more = {"content": archive, "headers": headers, "timeout": UPLOAD_TIMEOUT_S}
        return await self._request(CodeView, "POST", "/code", repeatable=True, **more)

    @shared_method
    async def dry_run(self, spec: Mapping[str, Any]) -> DryRun:
        """Validate a spec: returns it with defaults, and whether the job would wait."""
        from accordion_service.schemas.specs import DryRun

        more = {"json": dict(spec), "params": {"dry_run": "true"}}
        return await self._request(DryRun, "POST", "/jobs", repeatable=True, **more)

    @shared_method
    async def dry_run_clone(self, job_id: str, changes: Mapping[str, Any] | None = None) -> DryRun:
        """Validate a clone: returns its spec, and whether it would wait."""
        from accordion_service.schemas.specs import DryRun

        more = {"json": {"spec": dict(changes or {})}, "params": {"dry_run": "true"}}
        return await self._request(DryRun, "POST", f"/jobs/{job_id}/clone", repeatable=True, **more)

    @shared_method
    async def jobs(
        self,
        /,
        *,
        archived: bool | None = False,
        limit: int = 50,
        cursor: str | None = None,
        **filters: Unpack[JobKeywords],
    ) -> JobPage:
        """Get one page of jobs, newest first, that match all given filters.

        Args:
            archived: True for only archived jobs, False for only jobs that are not archived, None
                for all.
            limit: most jobs of the page.
            cursor: `next_cursor` of the previous page.
            filters: such as `status=["RUNNING"]`, `owner="ada"` or
                `created_after`, a time with a time zone.

        Raises:
            TypeError: there is no such filter.
        """
        from accordion_service.schemas.queries import JobKeywords

        params = {"limit": limit, **format_params({"cursor": cursor}), **_ARCHIVED[archived]}
        params |= format_filters(JobKeywords, filters)
        return await self._request(JobPage, "GET", "/jobs", params=params)

    @shared_iterator
    async def all_jobs(self, *, archived: bool | None = False) -> AsyncGenerator[JobView, None]:
        """Iterate over all jobs, newest first; `archived` as in `jobs`."""
        params = {"limit": PAGE_JOBS, **_ARCHIVED[archived]}
        async for page in self._read_pages(JobPage, "/jobs", params):
            for job in page.items:
                yield job

    @shared_method
    async def job(self, job_id: str) -> JobView:
        """Get one job by its id."""
        return await self._request(JobView, "GET", f"/jobs/{job_id}")

    @shared_method
    async def find(self, reference: str, *, archived: bool = False) -> JobView:
        """Find a job by id, id prefix or name; if several match, the unfinished one. Archived jobs
        are found only if no other matches, or first with `archived`.

        Raises:
            AmbiguousJob: none matches, or several.
        """
        if len(reference) == 36:
            try:
                return await self._request(JobView, "GET", f"/jobs/{reference}")
            except NotFound:
                pass  # A name can be as long as an id.
        found = await self._find_matching(reference, archived=archived)
        if not found:
            found = await self._find_matching(reference, archived=not archived)
        going = [job for job in found if job.ended_at is None]
        if not going and len(found) >= PAGE_JOBS:
            going = await self._find_matching(reference, status=UNFINISHED)
        if len(found) == 1 or len(going) == 1:
            return (going or found)[0]
        if not found:
            raise AmbiguousJob(f"there is no job {reference!r}; 'accordion list' shows all")
        if not going:
            newest = max(found, key=lambda job: job.created_at)
            message = (
                f"no unfinished job matches {reference!r}; the newest that ended is {newest.id}"
                f" ({newest.status})"
            )
            raise AmbiguousJob(message, newest.id)
        shown = ", ".join(f"{job.id} ({job.status})" for job in found[:5])
        count = f"{len(found)} or more" if len(found) >= PAGE_JOBS else len(found)
        more = " ..." if len(found) > 5 else ""
        raise AmbiguousJob(f"{reference!r} fits {count} jobs: {shown}{more}; give more of the id")

    async def _find_matching(
        self, reference: str, status: Sequence[str] = (), *, archived: bool = False
    ) -> list[JobView]:
        """Newest jobs with that name or id prefix, at most one page of each."""
        asked = {
            "name": len(reference) <= MAX_NAME and reference.isprintable(),
            "id": _ID_PREFIX.fullmatch(reference),
        }
        found: dict[str, JobView] = {}
        for field in (field for field, may_match in asked.items() if may_match):
            params: dict[str, Any] = {field: reference, "status": list(status), "limit": PAGE_JOBS}
            params |= _ARCHIVED[archived]
            page = await self._request(JobPage, "GET", "/jobs", params=params)
            found |= {job.id: job for job in page.items}
        return list(found.values())

    @shared_method
    async def change(
        self,
        job_id: str,
        *,
        name: str | None = None,
        labels: Mapping[str, str | None] | None = None,
        priority: int | None = None,
    ) -> JobView:
        """Change the name, labels or priority of a job; a label of None is removed."""
        change = {"name": name, "labels": dict(labels or {}), "priority": priority}
        return await self._request(JobView, "PATCH", f"/jobs/{job_id}", json=change)

    @shared_method
    async def cancel(self, job_id: str) -> JobView:
        """Cancel; repeating is harmless."""
        return await self._request(JobView, "POST", f"/jobs/{job_id}/cancel", repeatable=True)

    @shared_method
    async def resize(self, job_id: str, min_workers: int, max_workers: int) -> JobView:
        """Allow the job `min_workers` to `max_workers` workers; repeating is harmless."""
        body = {"min": min_workers, "max": max_workers}
        return await self._request(
            JobView, "POST", f"/jobs/{job_id}/resize", repeatable=True, json=body
        )

    @shared_method
    async def pause(self, job_id: str) -> JobView:
        """Pause a job after saving a checkpoint; repeating is harmless."""
        return await self._request(JobView, "POST", f"/jobs/{job_id}/pause", repeatable=True)

    @shared_method
    async def resume(self, job_id: str) -> JobView:
        """Resume a paused job; repeating is harmless."""
        return await self._request(JobView, "POST", f"/jobs/{job_id}/resume", repeatable=True)

    @shared_method
    async def retry(self, job_id: str) -> JobView:
        """Retry a job that failed or was cancelled; repeating is harmless."""
        return await self._request(JobView, "POST", f"/jobs/{job_id}/retry")

    @shared_method
    async def archive(self, job_id: str) -> JobView:
        """Archive an ended job: lists leave it out; repeating is harmless."""
        return await self._request(JobView, "POST", f"/jobs/{job_id}/archive", repeatable=True)

    @shared_method
    async def unarchive(self, job_id: str) -> JobView:
        """Unarchive a job: lists show it again; repeating is harmless."""
        return await self._request(JobView, "POST", f"/jobs/{job_id}/unarchive", repeatable=True)

    @shared_method
    async def delete_job(self, job_id: str) -> JobView:
        """Delete an ended job with its history and checkpoints, and return it as it was."""
        return await self._request(JobView, "DELETE", f"/jobs/{job_id}")

    @shared_method
    async def act_on_jobs(
        self,
        action: str,
        labels: Mapping[str, str],
        *,
        owner: str | None = None,
        change: Mapping[str, Any] | None = None,
        resize: tuple[int, int] | None = None,
        ids: Sequence[str] = (),
        dry_run: bool = False,
        cursor: str | None = None,
    ) -> BatchView:
        """Cancel, pause, resume or resize all unfinished jobs with these labels; archive, unarchive
        or delete the ended ones; retry those that failed or were cancelled; or change all. One call
        is for at most 200 jobs, the newest first, and for 20 s.

        Args:
            action: `cancel`, `pause`, `resume`, `resize`, `archive`, `unarchive`, `delete`, `retry`
                or `change`.
            labels: labels by key; a job must have all of them.
            owner: only jobs of this user.
            change: for `change`: the new `priority`, and `labels` by key, of which None removes
                one.
            resize: for `resize`: fewest and most workers.
            ids: only these jobs of those with the labels, at most 200; empty for all.
            dry_run: list the jobs, and change nothing.
            cursor: `next_cursor` of the previous answer, to go on after its jobs.
        """
        from accordion_service.schemas.batches import BatchView

        body: dict[str, Any] = {"action": action, "labels": dict(labels), "owner": owner}
        body |= {"ids": list(ids), "dry_run": dry_run, "cursor": cursor}
        if change is not None:
            body["change"] = dict(change)
        if resize is not None:
            body["resize"] = {"min": resize[0], "max": resize[1]}
        return await self._request(
            BatchView, "POST", "/job-actions", json=body, timeout=BATCH_TIMEOUT_S
        )
