-- Closes the holds of a request, or those of requests that have expired. KEYS: `holds`, `due` and `ended`. ARGV: the most
-- requests that are remembered; `s` to settle, `e` to end, `c` to cancel or `x` for what has expired; then the id, the
-- cost, and the currency if only its holds are meant.
--
-- Returns what it closed; what has expired follows the number of open requests, and that of requests left to sweep.
local how = ARGV[2]

if how ~= 'x' then
  return close(KEYS, tonumber(ARGV[1]), ARGV[3], how, tonumber(ARGV[4]), ARGV[5])
end
local closed, due, ended = '', KEYS[2], KEYS[3]
for _, set in ipairs({ due, ended }) do
  for _, id in ipairs(call('ZRANGEBYSCORE', set, '-inf', format('%d', now), 'LIMIT', '0', '100')) do
    closed = closed .. close(KEYS, tonumber(ARGV[1]), id, 'x')
  end
end
local left = call('ZCOUNT', due, '-inf', format('%d', now)) + call('ZCOUNT', ended, '-inf', format('%d', now))
return pack('<i8i8', call('ZCARD', due), left) .. closed
