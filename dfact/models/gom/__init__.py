"""Grade of membership: GradeOfMembership."""
