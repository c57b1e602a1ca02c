"""When to try again, and when to stop trying: retries, the retry clock, circuit breaker and failure brake."""
