"""What `sealbus check` looks at before a deployment: code, schemas, settings, policy, keys, workflow files."""
