"""The wire contract `sealbus/1`: envelope, canonical form, hashes, proof chain and signature form.

Its text is `PROTOCOL.md`. Pure.
"""
