"""Who may say what: policy. Keys, rules, authority and labels have their place here."""
