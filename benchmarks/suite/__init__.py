"""What the tests find: the branches that each tier covers, and the faults planted in the sources that it notices."""
