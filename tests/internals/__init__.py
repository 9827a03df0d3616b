"""Names of other libraries that dfact uses without their documentation are checked."""
