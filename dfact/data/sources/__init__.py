"""Row sources: data in memory, in a store or on a cluster that passes read by ranges of rows."""
