"""Prepare Numba where this is imported: in the fork server, so that no forked process takes 0.4 s for it before its first kernel."""

from numba.core.registry import cpu_target

cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
