"""Sites, a slice: fits across sites whose rows stay there, by sums that each site's policy permits.

Each site and the coordinator run the same solver, which depends on the data only through sums. A site sends the root of its tree of sums
for a pass, and gets the total of all sites back. No code, no pass and no broadcast is in a message.

    description, contract   the columns and counts of a site's data, and the columns that all sites must have
    policy, site_log    what may leave a site, and what has left
    carriers, leverage, connections    how many rows carry a sum, a combination of columns, or a connection of two
    released            the sums that may leave
    ledger, row_sets    what a site remembers over all runs
    gate                the way of sums out of a site
    settings            the parameters that a coordinator may set, with their ranges
    tasks, resources    what a coordinator may ask for, and the memory and processes that sites have for it
    sessions            passes over the rows of a site, and over none at the coordinator
    exchange            the steps of a run: contributions of the sites, and totals
    site, coordinator   the programs of both
    messages, packing, transport    text, arrays and sums as bytes, over gRPC with certificates
    in_process          sites in threads of one process
    command, across_sites    the command of a site, and what commands do with --sites
"""
