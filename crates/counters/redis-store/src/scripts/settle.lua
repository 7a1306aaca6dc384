-- Closes the holds of a request, or those of requests that have expired. KEYS: `holds`, `due` and `ended`. ARGV: the most
-- requests that are remembered; `s` to settle, `e` to end, `c` to cancel or `x` for what has expired; then the id, the
-- cost, and the currency if only its holds are meant.
--
-- Returns what it closed; what has expired follows the number of open requests, and that of requests left to sweep.
local how, most = ARGV[2], tonumber(ARGV[1])

if how ~= 'x' then
  return close(KEYS, most, ARGV[3], how, tonumber(ARGV[4]), ARGV[5])
end
local records, due, ended = KEYS[1], KEYS[2], KEYS[3]
local closed = (sweep(KEYS, most, due, 100) or '') .. (sweep(KEYS, most, ended, 100) or '')
local left = call('ZCOUNT', due, '-inf', format('%d', now)) + call('ZCOUNT', ended, '-inf', format('%d', now))
local open = call('ZCARD', due)
if open > 0 or call('ZCARD', ended) > 0 then
  -- So a clock that is set back is noticed by a second.
  call('HSET', records, 'now', format('%d', now))
  outlive(records, 60000)
else
  call('HDEL', records, 'now', 'behind')
end
return pack('<i8i8', open, left) .. closed
