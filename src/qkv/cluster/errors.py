"""What goes wrong between machines."""

from __future__ import annotations


class ClusterError(ConnectionError):
    """The cluster cannot do the work: workers or ranks are gone, or somebody does not answer."""
