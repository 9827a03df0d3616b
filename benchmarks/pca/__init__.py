"""Principal components: time, accuracy and memory against other libraries."""
