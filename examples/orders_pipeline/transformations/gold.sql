-- Gold: what came of it, by country.
CREATE MATERIALIZED VIEW revenue_gold AS
SELECT country, count(*) AS orders, sum(amount) AS revenue, max(timestamp) AS latest
FROM orders_silver
GROUP BY country;
