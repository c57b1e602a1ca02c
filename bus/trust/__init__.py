"""Trust: the policy interface. Keys, authority and labels belong here too."""
