-- Counts each key's log by the argument whose index is the key's byte of the first argument. Returns the reply for each
-- log, and the time.
local indexes, limits, replies = { ARGV[1]:byte(1, -1) }, {}, {}
for i = 2, #ARGV do
  limits[i - 1] = log_limit(ARGV[i])
end
for i, key in ipairs(KEYS) do
  replies[i] = count_log(key, limits[indexes[i]])
end
replies[#KEYS + 1], replies[#KEYS + 2] = now[1], now[2]
return replies
