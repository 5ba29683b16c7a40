"""The parts of the checker: state, deliveries, orders."""
