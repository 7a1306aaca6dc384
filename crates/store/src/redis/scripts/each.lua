-- Counts each key by the argument whose index is the key's byte of the first argument. Returns the states before, and
-- the time.
local indexes, limits = { ARGV[1]:byte(1, -1) }, {}
for i = 2, #ARGV do
  limits[i - 1] = algorithms[ARGV[i]:sub(1, 1)](ARGV[i])
end
local states = call('MGET', unpack(KEYS))
for i, key in ipairs(KEYS) do
  local old = states[i]
  local state, seconds = limits[indexes[i]](old)
  if (state or state == false) and not keep(key, old, state, seconds) then
    states[i] = FOREIGN
  end
end
states[#KEYS + 1], states[#KEYS + 2] = now[1], now[2]
return states
