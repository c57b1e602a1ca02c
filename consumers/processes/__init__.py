"""Work that outlives a message: sagas, approvals, and the conversations built of them."""
