"""Who is told of incidents, and how: receivers, deliveries, and the way from the outbox to them."""
