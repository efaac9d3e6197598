// Present so that functions without bodies may be declared in linked.go.
