-- Asks of each key what its byte of the first argument names. Returns the states as they were, and the time:
-- by these the caller tells everyone who asked what came of it.
local which, asks = { ARGV[1]:byte(1, -1) }, {}
for i = 2, #ARGV do
  asks[i - 1] = algorithms[ARGV[i]:sub(1, 1)](ARGV[i])
end
local states = call('MGET', unpack(KEYS))
for i, key in ipairs(KEYS) do
  local old = states[i]
  local state, seconds = asks[which[i]](old)
  if (state or state == false) and not keep(key, old, state, seconds) then
    states[i] = FOREIGN
  end
end
states[#KEYS + 1], states[#KEYS + 2] = now[1], now[2]
return states
