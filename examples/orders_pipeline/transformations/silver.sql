-- Silver: orders with columns of their own; what is no order stays behind in bronze.
CREATE STREAMING TABLE orders_silver AS
SELECT id, timestamp, parsed.customer, parsed.country, parsed.amount
FROM (
  SELECT id, timestamp, from_json(value, 'customer STRING, country STRING, amount DECIMAL(12, 2)') AS parsed
  FROM STREAM orders_bronze
)
WHERE parsed.customer IS NOT NULL AND parsed.amount > 0;
