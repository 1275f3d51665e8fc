"""The wire contract: longshore/v1/*.proto as modules, generated when the package is built."""
