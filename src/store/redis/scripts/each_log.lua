-- Asks of each key's log what its byte of the first argument names. Returns what each tells, and the time.
local which, asks, told = { ARGV[1]:byte(1, -1) }, {}, {}
for i = 2, #ARGV do
  asks[i - 1] = asked_of_log(ARGV[i])
end
for i, key in ipairs(KEYS) do
  told[i] = ask_log(key, asks[which[i]])
end
told[#KEYS + 1], told[#KEYS + 2] = now[1], now[2]
return told
