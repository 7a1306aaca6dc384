-- Charges what has expired of a counter, and resets it then if ARGV[2] is 1. What it holds stays, and is charged when it ends;
-- of requests at a time, which have no counter, all places become free. KEYS: `holds`, `due` and `ended`, the counter's set,
-- and the counter to reset if there is one. ARGV[1]: the most requests that are remembered.
--
-- Returns what is held unless it resets, and 1 if more may have expired than one call sweeps, before what it closed.
local records, set, counter = KEYS[1], KEYS[4], KEYS[5]
local closed = sweep(KEYS, tonumber(ARGV[1]), set, 200)
if closed or ARGV[2] == '0' then
  local held = call('ZCARD', set) > 0 and call('HMGET', records, set)[1]
  return pack('<i8i8', tonumber(held or 0), closed and 1 or 0) .. (closed or '')
end
if not counter then
  call('HDEL', records, set)
  call('DEL', set)
else
  local spent = call('GET', counter)
  if spent and spent ~= '0' then
    -- The expiry stays.
    call('INCRBY', counter, '-' .. spent)
  end
end
return pack('<i8i8', 0, 0)
